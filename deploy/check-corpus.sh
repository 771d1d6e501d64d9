#!/usr/bin/env bash
# Compares `nodewarden inspect` with independently computed results. NODEWARDEN_CORPUS names the folder of evidence.
# Without it: a visible skip; with CI=true: a failure, so that no pipeline passes by not looking.
set -euo pipefail

run=$1
if [ -z "${NODEWARDEN_CORPUS:-}" ]; then
  echo "corpus: SKIPPED, NODEWARDEN_CORPUS is not set" >&2
  [ "${CI:-}" = true ] && exit 1
  exit 0
fi
exec "$run/python" tests/corpus/check_corpus.py --cmd "$run/nodewarden" --root "$NODEWARDEN_CORPUS" \
  eventlog negative vm ekcert
