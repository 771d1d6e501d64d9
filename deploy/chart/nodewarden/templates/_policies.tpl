{{/* Requests of people who break the glass pass: kubectl --as=ME --as-group=GROUP, which the audit log shows. */}}
{{- define "nodewarden.notBreakGlass" -}}
- name: not-break-glass
  expression: >-
    !({{ .Values.breakGlassGroup | squote }} in request.userInfo.?groups.orValue([]))
{{- end }}

{{/* Whether container c could reach its node. NET_BIND_SERVICE is what `restricted` Pod Security allows too. */}}
{{- define "nodewarden.reachesNode" -}}
c.?securityContext.?privileged.orValue(false) ||
c.?securityContext.?capabilities.?add.orValue([]).exists(a, a != 'NET_BIND_SERVICE') ||
c.?securityContext.?procMount.orValue('Default') != 'Default'
{{- end }}

{{/* A binding of the policy that has the same name, denying. */}}
{{- define "nodewarden.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    app.kubernetes.io/part-of: nodewarden
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}
