#!/usr/bin/env bash
# Once after installing: give the parts of Nodewarden what the verifier and the broker made at their first start, the
# CAs to pin and the machine token. The parts wait for these objects; the webhook does not, and denies sensitive pods
# until then. Nothing is written to disk. Run it again after the verifier's or the broker's volume was lost. Needs
# kubectl with rights in both namespaces.
set -euo pipefail
system=nodewarden-system
read_file() { kubectl -n "$system" exec "deploy/nodewarden-$1" -c "$1" -- cat "/var/lib/nodewarden/$2"; }
apply() { kubectl "$@" --dry-run=client -o yaml | kubectl apply -f -; }

kubectl -n "$system" rollout status deploy/nodewarden-verifier --timeout=5m
verifier_ca=$(read_file verifier tls/ca.pem)
apply -n "$system" create configmap nodewarden-verifier-ca --from-file=ca.pem=/dev/stdin <<< "$verifier_ca"
# By a pipe, so that the token is no argument of any process.
read_file verifier tokens/machine.token |
  kubectl -n "$system" create secret generic nodewarden-machine-token --from-file=token=/dev/stdin --dry-run=client -o yaml |
  kubectl apply -f -
# It runs already, and would see the CA only when the kubelet looks again, after a minute or more.
kubectl -n "$system" rollout restart deploy/nodewarden-webhook
kubectl -n "$system" rollout status deploy/nodewarden-webhook --timeout=5m
kubectl -n "$system" rollout status deploy/nodewarden-controller --timeout=5m

bundle=$verifier_ca
if kubectl -n "$system" get deploy/nodewarden-broker > /dev/null 2>&1; then
  kubectl -n "$system" rollout status deploy/nodewarden-broker --timeout=5m
  bundle+=$'\n'$(read_file broker tls/ca.pem)
fi
apply -n nodewarden-attester create configmap nodewarden-ca --from-file=ca.pem=/dev/stdin <<< "$bundle"
