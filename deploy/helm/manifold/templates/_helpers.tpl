{{/* A file of the manifests, for the namespace of the release. */}}
{{- define "manifold.file" -}}
{{- .root.Files.Get .name | replace "manifold-system" .root.Release.Namespace -}}
{{- end -}}

{{/* All files of a folder. */}}
{{- define "manifold.folder" -}}
{{- $root := .root -}}
{{- range $name, $_ := .root.Files.Glob .glob }}
---
{{ include "manifold.file" (dict "root" $root "name" $name) }}
{{- end }}
{{- end -}}
