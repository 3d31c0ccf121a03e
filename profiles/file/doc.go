// Package file reads profiles from a YAML or JSON file, and follows its changes.
//
//	web.yaml ◀── stat, twice a second ── Source ──▶ each Watch: the profile of
//	   │          while there is a Watch   ▲        its target, if that changed
//	   └─── read and parse after a change ─┘
//
// A [Source] follows one file. For several files, use several Sources. A file contains one or more
// documents, each in one of two formats. The file may also be JSON, but without the escape \/ and
// surrogate pairs, which YAML does not have. While a file has mistakes, its last valid content
// stays active.
//
// # Formats
//
// A document with apiVersion linkerd.io/v1alpha2 and kind ServiceProfile is read as
// linkerd's controller and proxy do. The output of "linkerd profile", flagger and "kubectl
// get serviceprofiles -o yaml" works unchanged. metadata.name is the target, for all of its
// ports. If two ServiceProfiles have the same name, the one in the namespace of the service
// is used. The default retryBudget is 20 %, 10 per second, 10 s. isRetryable retries all
// methods.
//
// Documents that linkerd rejects are mistakes. linkerd silently leaves out an invalid
// expression, a status range with one end, and an IP address in a split. Such parts are
// left out here too, with a warning in [Set.Warnings] and in the log of [WithLogger]. An
// expression that is too large is also left out, see [profiles.Path].
//
// Any other document is in the short form, which has all fields of a [profiles.Profile] and its routes,
// except those of client policies and AnyLine. FORMAT.md in this directory documents it:
//
//	target: web.default.svc.cluster.local
//	routes:
//	- match: {method: GET, path: /api/vote}
//	  timeout: 1s
//	  retry: true
//	split: {web-v1.default.svc.cluster.local: 90, web-v2.default.svc.cluster.local: 10}
//
// A profile for a target with a port takes precedence over one for the target without a port. The
// Source does not read ServiceProfiles from the Kubernetes API, because linkerd's controller
// serves them: see package profiles/linkerd.
//
// # Mistakes
//
// Mistakes are unknown and duplicate fields, two profiles for one target, YAML aliases and tags,
// resources of other kinds, and invalid values. An empty file is a mistake too, because it is
// probably being written. All mistakes of a file are reported at once, each as an [*Error] with
// its line, column and field. A syntax error is reported alone.
//
// # Changes
//
// The file is polled twice a second while a sequence of Watch is in use. A poll of an
// unchanged file is one stat. It compares the file at the path, its size and its
// modification time. This detects a rename, a changed symbolic link, and an update of a
// Kubernetes ConfigMap mounted as a volume. Kubernetes never updates a ConfigMap that is
// mounted with a subPath.
//
// If a watched target is not in the file any more, the error lists the targets found, and
// the last profile of the target stays active. To return to the default profile, write the
// target without any other field. A path that does not exist is an error, and all profiles
// stay active.
//
// Replace a file by a rename. If a file is written in place, a half-written version may be
// read and be active until the next poll. A network file system may show a change late.
package file
