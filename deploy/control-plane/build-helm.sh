#!/usr/bin/env bash
# Build helm from its Go module into the cache of go-build.sh, once: deploy/install.yaml is the chart rendered, and a
# test keeps them equal. 158 s on 2 cores, cold.
HELM_VERSION=${HELM_VERSION:-v3.19.0}
. "$(dirname "$0")/go-build.sh"

module helm "helm.sh/helm/v3 $HELM_VERSION"
# What `helm template` takes for the cluster's version when it asks none.
utilities=helm.sh/helm/v3/pkg/chartutil
build helm "$HELM_VERSION" helm.sh/helm/v3/cmd/helm "-X helm.sh/helm/v3/internal/version.version=$HELM_VERSION \
  -X $utilities.k8sVersionMajor=1 -X $utilities.k8sVersionMinor=34"
