{{- define "nodewarden.image" -}}
{{- $digest := index .root.Values.image.digests .name -}}
{{ .root.Values.image.registry }}/nodewarden-{{ .name }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ .root.Values.image.tag }}{{ end }}
{{- end }}

{{- define "nodewarden.labels" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: nodewarden
{{- end }}

{{/* What `restricted` Pod Security asks of a pod, and files of the pod's own user where a volume starts empty. */}}
{{- define "nodewarden.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
# Once: a second pass would open keys of mode 0600 to the group, and then they are refused.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "nodewarden.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "nodewarden.placement" -}}
priorityClassName: nodewarden
nodeSelector:
  {{- toYaml .root.Values.trustedNodes.nodeSelector | nindent 2 }}
tolerations:
  {{- toYaml .root.Values.trustedNodes.tolerations | nindent 2 }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        app.kubernetes.io/name: {{ $.name }}
  {{- end }}
{{- end }}

{{/* Where only the API server gets through the handshake, the kubelet can see no more than that somebody listens. */}}
{{- define "nodewarden.probes" -}}
startupProbe:
  {{- include "nodewarden.probed" (dict "path" .path "tcp" .tcp) | nindent 2 }}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  {{- include "nodewarden.probed" (dict "path" "/healthz" "tcp" .tcp) | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 3
readinessProbe:
  {{- include "nodewarden.probed" (dict "path" .path "tcp" .tcp) | nindent 2 }}
  periodSeconds: 2
  timeoutSeconds: 3
{{- end }}

{{- define "nodewarden.probed" -}}
{{- if .tcp -}}
tcpSocket: {port: https}
{{- else -}}
httpGet: {path: {{ .path }}, port: https, scheme: HTTPS}
{{- end }}
{{- end }}

{{/* Whose results count, for webhook, controller and broker. */}}
{{- define "nodewarden.results" -}}
issuer: {{ .Values.verifier.issuer | quote }}
audience: {{ .Values.verifier.audience | quote }}
jwks_url: https://nodewarden-verifier.nodewarden-system.svc:8443/.well-known/jwks.json
jwks_ca_file: /etc/nodewarden/verifier-ca/ca.pem
{{- end }}

{{/*
Keeps files of a Secret as ones that only the pod's user may read: mounted ones belong to root and to the group. Again
and again, since the Secret's certificate is renewed.
*/}}
{{- define "nodewarden.ownFiles" -}}
- name: own-files
  image: {{ include "nodewarden.image" (dict "root" .root "name" "admission") }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  restartPolicy: Always
  command:
    - /bin/sh
    - -ec
    - >-
      while :; do for f in {{ .from }}/*; do cmp -s "$f" "{{ .to }}/${f##*/}" || install -m 0600 -t {{ .to }} "$f"; done;
      sleep 60; done
  startupProbe:
    exec: {command: [test, -s, {{ .to }}/tls.key]}
    periodSeconds: 1
  resources:
    requests: {cpu: 5m, memory: 8Mi}
    limits: {memory: 32Mi}
  securityContext:
    {{- include "nodewarden.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: secret, mountPath: {{ .from }}, readOnly: true}
    - {name: {{ .volume }}, mountPath: {{ .to }}}
{{- end }}
