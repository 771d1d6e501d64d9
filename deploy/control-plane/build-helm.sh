#!/usr/bin/env bash
# Build helm from its Go module into $1 (default ~/.cache/nodewarden/control-plane), once. Needs Go 1.24 or newer.
# Only tests and maintainers need it: deploy/install.yaml is the chart rendered. Measured on 2 cores, cold: 158 s.
set -euo pipefail
HELM=${HELM:-v3.19.0}
CACHE=${NODEWARDEN_CACHE:-$HOME/.cache/nodewarden}
OUT=$(mkdir -p "${1:-$CACHE/control-plane}" && cd "${1:-$CACHE/control-plane}" && pwd)
[ -x "$OUT/helm" ] && exit 0
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work"
printf 'module helm\ngo 1.24.0\nrequire helm.sh/helm/v3 %s\n' "$HELM" > go.mod
export GOFLAGS=-mod=mod
u=helm.sh/helm/v3/pkg/chartutil # what `helm template` takes for the cluster's version when it asks none
go build -trimpath -ldflags "-s -w -X helm.sh/helm/v3/internal/version.version=$HELM -X $u.k8sVersionMajor=1 -X $u.k8sVersionMinor=34" -o "$OUT/helm.new" helm.sh/helm/v3/cmd/helm
mv "$OUT/helm.new" "$OUT/helm"
