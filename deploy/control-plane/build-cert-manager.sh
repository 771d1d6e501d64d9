#!/usr/bin/env bash
# Builds cert-manager's controller and cainjector from their Go module into the cache, with cert-manager's own chart for
# its CRDs and its rights; what is there already stays.
#
# Cold: 440 s of processor time, so some 4 minutes on 2 cores that have nothing else to do.
CERT_MANAGER=${CERT_MANAGER:-v1.21.2}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/go-build.sh"

module cert-manager-nodewarden "github.com/cert-manager/cert-manager $CERT_MANAGER"
cp "$here/cert-manager/main.go" .
build cert-manager "$CERT_MANAGER" . "-X github.com/cert-manager/cert-manager/pkg/util.AppVersion=$CERT_MANAGER"

if needed cert-manager-chart "$CERT_MANAGER"; then
  find_go
  rm -rf "$OUT/cert-manager-chart"
  cp -r "$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)/deploy/charts/cert-manager" "$OUT/cert-manager-chart"
  chmod -R u+w "$OUT/cert-manager-chart"
  printf '%s\n' "$CERT_MANAGER" > "$OUT/stamps/cert-manager-chart"
fi
echo "cert-manager: ready in $OUT" >&2
