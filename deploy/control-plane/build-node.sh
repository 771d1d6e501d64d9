#!/usr/bin/env bash
# Builds a real node's programs into the cache: kubelet, containerd, the Secrets Store CSI Driver. runc is Debian's.
#
# Measured on 2 cores after build.sh: kubelet 51 s, containerd with shim and ctr 132 s, driver 140 s.
KUBERNETES=${KUBERNETES:-37.2} CONTAINERD=${CONTAINERD:-v2.4.2} CSI=${CSI:-v1.5.6}
. "$(dirname "$0")/go-build.sh"

kubernetes_module "$KUBERNETES"
kubernetes_program kubelet "$KUBERNETES"

module containerd "github.com/containerd/containerd/v2 $CONTAINERD"
for program in containerd containerd-shim-runc-v2 ctr; do
  build "$program" "$CONTAINERD" "github.com/containerd/containerd/v2/cmd/$program" "" no_btrfs,no_devmapper
done

# The driver logs through monis.app/mlog, which module proxies do not all serve: these lines stand in for it.
module csi "sigs.k8s.io/secrets-store-csi-driver $CSI"
echo "replace monis.app/mlog => ./mlog" >> go.mod
mkdir -p mlog
printf 'module monis.app/mlog\ngo 1.21\n' > mlog/go.mod
cat > mlog/mlog.go <<'GO'
package mlog

import (
	"context"
	"log"
	"os"
)

type LogFormat string

const (
	FormatText LogFormat = "text"
	FormatJSON LogFormat = "json"
)

func Setup() func() { return func() {} }

func ValidateAndSetKlogLevelAndFormatGlobally[L ~int32](_ context.Context, _ L, _ LogFormat) error { return nil }

func Error(msg string, err error, _ ...any) { log.Println(msg, err) }

func Fatal(err error) { log.Println(err); os.Exit(1) }
GO
build secrets-store-csi "$CSI" sigs.k8s.io/secrets-store-csi-driver/cmd/secrets-store-csi-driver

if needed csi-crds "$CSI"; then
  find_go
  rm -rf "$OUT/csi-crds"
  cp -r "$(go list -m -f '{{.Dir}}' sigs.k8s.io/secrets-store-csi-driver)/config/crd/bases" "$OUT/csi-crds"
  chmod -R u+w "$OUT/csi-crds"
  printf '%s\n' "$CSI" > "$OUT/stamps/csi-crds"
fi
echo "real node: ready in $OUT" >&2
