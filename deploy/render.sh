#!/usr/bin/env bash
# Render the chart with its default values on standard output: deploy/render.sh > deploy/install.yaml
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
helm=${HELM:-$(command -v helm || echo "${NODEWARDEN_CACHE:-$HOME/.cache/nodewarden}/control-plane/helm")}
echo "# The chart deploy/chart/nodewarden with its default values, for kubectl apply -f. Made by deploy/render.sh."
"$helm" template nodewarden "$here/chart/nodewarden" --include-crds --namespace kube-system --kube-version 1.34.0 "$@" \
  2> >(grep -v 'found symbolic link' >&2)
