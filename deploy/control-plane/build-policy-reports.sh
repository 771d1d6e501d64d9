#!/usr/bin/env bash
# Puts the definition of the kind PolicyReport (wgpolicyk8s.io/v1alpha2) into the cache, as a policy engine installs it:
# its Go module carries the working group's own file. Nothing is built. 60 MB of modules, seconds.
KYVERNO=${KYVERNO:-v1.13.6}
. "$(dirname "$0")/go-build.sh"

if needed policy-report-crds "$KYVERNO"; then
  find_go
  cd "$work"
  found=$(go mod download -json "github.com/kyverno/kyverno@$KYVERNO" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  rm -rf "$OUT/policy-report-crds"
  mkdir "$OUT/policy-report-crds"
  cp "$found/config/crds/policyreport/wgpolicyk8s.io_policyreports.yaml" "$OUT/policy-report-crds/"
  chmod -R u+w "$OUT/policy-report-crds"
  printf '%s\n' "$KYVERNO" > "$OUT/stamps/policy-report-crds"
fi
echo "policy reports: ready in $OUT" >&2
