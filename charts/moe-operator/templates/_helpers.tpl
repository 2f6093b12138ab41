{{- define "moe-operator.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 52 characters, so that every suffix of this chart still fits into a DNS label. */ -}}
{{- define "moe-operator.fullname" -}}
{{- $name := include "moe-operator.name" . -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $whole | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "moe-operator.selector" -}}
app.kubernetes.io/name: {{ include "moe-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "moe-operator.commonLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: moe-operator
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "moe-operator.labels" -}}
{{ include "moe-operator.selector" . }}
{{ include "moe-operator.commonLabels" . }}
{{- end -}}

{{- define "moe-operator.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "moe-operator.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- /* registry/repository:tag@digest of an image; call with (dict "image" … "root" $). */ -}}
{{- define "moe-operator.image" -}}
{{- with .image.registry }}{{ . }}/{{ end -}}
{{- .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion -}}
{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- /* The operator's configuration file. */ -}}
{{- define "moe-operator.policy" -}}
{{- $operator := include "moe-operator.image" (dict "image" .Values.image "root" .) -}}
{{- $envoy := include "moe-operator.image" (dict "image" .Values.envoyImage "root" .) -}}
{{- $images := dict "operator" $operator "envoy" $envoy -}}
{{- $peer := dict "operatorNamespace" .Release.Namespace "operatorLabels" (include "moe-operator.selector" . | fromYaml) -}}
{{- merge (dict "images" $images "networkPolicies" $peer) .Values.policy | toYaml -}}
{{- end -}}

{{- /* What the `restricted` pod security level asks for, and a file system that cannot be written. */ -}}
{{- define "moe-operator.restricted" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end -}}
