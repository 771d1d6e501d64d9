#!/usr/bin/env bash
# Builds a Kubernetes control plane and kwok from their Go modules into the cache; what is there already stays.
#
# Measured on 2 cores, cold: apiserver 600 s, scheduler 88 s, controller manager 101 s, etcd 44 s, kwok 129 s;
# with the node's programs and helm 6.1 GB of Go's build cache, 2.3 GB of modules and 0.7 GB of programs.
KUBERNETES=${KUBERNETES:-37.2} ETCD=${ETCD:-v3.7.3} KWOK=${KWOK:-v0.8.0}
. "$(dirname "$0")/go-build.sh"

kubernetes_module "$KUBERNETES"
for program in kube-apiserver kube-scheduler kube-controller-manager; do
  kubernetes_program "$program" "$KUBERNETES"
done

module etcd "go.etcd.io/etcd/server/v3 $ETCD"
build etcd "$ETCD" go.etcd.io/etcd/server/v3

module kwok "sigs.k8s.io/kwok $KWOK"
build kwok "$KWOK" sigs.k8s.io/kwok/cmd/kwok

# kwok does nothing without stages: the fast ones of its own module, in which nodes become Ready at once, bound pods
# Running, and deletions end.
if needed kwok-stages.yaml "$KWOK" || [ ! -s "$OUT/kwok-stages.yaml" ]; then
  find_go
  stages=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)/kustomize/stage
  for stage in node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease \
    pod/fast/pod-ready pod/fast/pod-complete pod/fast/pod-delete; do
    echo ---
    cat "$stages/$stage.yaml"
  done > "$OUT/kwok-stages.yaml.new.$$"
  chmod +x "$OUT/kwok-stages.yaml.new.$$" # what `needed` looks at
  mv "$OUT/kwok-stages.yaml.new.$$" "$OUT/kwok-stages.yaml"
  printf '%s\n' "$KWOK" > "$OUT/stamps/kwok-stages.yaml"
fi
echo "control plane: ready in $OUT" >&2
