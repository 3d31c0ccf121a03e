// Package file has profiles from YAML or JSON files, and follows their changes.
//
//	web.yaml  ◀┐
//	api.yaml  ◀┼─ stat, twice a second ── Source ──▶ each Watch: the profile of
//	shop.yaml ◀┘    while there is a Watch   ▲       its target, if that changed
//	     │                                   │
//	     └── read and parse what changed ────┘
//
// A [Source] follows one file, or the files in a directory. A file may have several
// documents, each in one of two formats. While a file has mistakes, its last valid
// content stays active.
//
// # ServiceProfiles of linkerd
//
// A document with apiVersion linkerd.io/v1alpha2 and kind ServiceProfile is read as
// linkerd's controller and proxy do. The output of "linkerd profile", flagger and
// "kubectl get serviceprofiles -o yaml" works unchanged. metadata.name is the target,
// for all of its ports. Of two with one name the namespace decides: see [WithNamespace].
// The default retryBudget is 20 %, 10 per second, 10 s. Documents that linkerd rejects
// are mistakes. linkerd silently leaves out an invalid expression, a status range with
// one end, and an address in a split. They are left out here too, with a warning in
// [Set.Warnings] and to a [WithLogger]. So is an expression that is too large: see
// [profiles.Path].
//
// # The short form
//
// A document without apiVersion and kind is in the short form, which has all fields of
// a [profiles.Profile]. Only target is required, and match in a route:
//
//	target: web.default.svc.cluster.local    # or a list; with :port for that one alone; or an IP address
//	name: web.default.svc.cluster.local      # left out: the target, if it is a name
//	routes:                                  # the first one that matches
//	- name: vote                             # also the label route, unless labels has one
//	  match: {method: GET, path: /api/vote}  # several fields: all of them
//	  labels: {team: ballot}                 # for metrics and tap
//	  timeout: 1s                            # to the head of the response, tries included
//	  tryTimeout: 300ms                      # of one try
//	  retry: true                            # retries of idempotent requests; see Retries
//	  maxRetries: 3                          # left out: what the budget and the timeout allow
//	  hedge: 50ms                            # a second copy when there is no answer by then
//	  limit: 100                             # on their way at a time
//	  rate: {perSecond: 50, burst: 10}       # or rate: 50
//	  successes: [404]                       # before the failures
//	  failures: [500-599, 429]
//	- name: rest
//	  match: {pathPrefix: /}
//	split:                                   # weights; without :port, the target's
//	  web-v1.default.svc.cluster.local: 90
//	  web-v2.default.svc.cluster.local: 10
//	retryBudget: {ratio: 0.2, minPerSecond: 10, ttl: 10s}   # these are the defaults
//	opaque: false                            # true: nobody looks for HTTP
//
// # Retries
//
// retry: true retries failed requests that are idempotent: GET, HEAD, OPTIONS,
// TRACE, PUT and DELETE (RFC 9110), and requests with an Idempotency-Key. POST,
// PATCH and gRPC calls, which are POSTs, are sent once. retry: {nonIdempotent:
// true} retries requests of all methods: use it where a repeated request has no
// further effect. In a ServiceProfile, isRetryable retries all methods, as in
// linkerd.
//
// # Conditions
//
// A match has these fields, where a list is any of its members, and a text is
// exact, or one of {exact: x}, {prefix: x}, {regex: x} and {present: true}:
//
//	method: [GET, HEAD]             # get is GET
//	path: /a/b                      # exact
//	pathPrefix: /a                  # /a and /a/b, not /ab
//	pathRegex: /a/[^/]*|/b          # the whole path, with a group around it
//	host: {prefix: img.}            # without the port; case does not matter
//	header: {x-user: ada, x-canary: {present: true}}
//	query: {page: "1"}
//	grpc: {service: shop.v1.Shop, method: Buy}      # or one of the two
//	all: [{...}, {...}]             # all: [] holds always
//	any: [{...}, {...}]
//	not: {...}
//
// classes replaces successes and failures where these are not sufficient. The first
// class that matches is used:
//
//	classes:
//	- match: {any: [{status: 404}, {not: {status: [200-299, 304]}}]}
//	  failure: true
//	- match: {grpc: [UNAVAILABLE, 13-15], trailer: {x-partial: {present: true}}}
//	  failure: true
//
// Other fields of a route change requests and responses, answer instead of the
// targets, or send copies:
//
//	requestHeader:                   # as it is forwarded: first add, then set, then remove
//	  add: {x-seen: [a, b]}          # one field more each
//	  set: {x-from: web}             # in place of those that there are
//	  remove: [x-debug, x-trace]
//	responseHeader: {remove: server}
//	redirect:                        # what is left out stays as it was asked for
//	  {status: 308, scheme: https, host: www.example.com, port: 8443, oldPrefix: /v1, newPrefix: /v2}   # or path: /new
//	faults:                          # the first one that a request falls into is its own
//	- {share: 1%, status: 503, grpc: UNAVAILABLE, ttl: 10m}        # ttl: from when it is first seen
//	- {share: 0.1, delay: 100ms, jitter: 50ms, ttl: 10m}
//	mirrors:                         # what they answer is dropped
//	- {target: web-v3.default.svc.cluster.local, share: 10%, body: 64KiB, inFlight: 100}
//
// A fault requires share and ttl. The body of a mirror is the size of the largest body
// that is copied. The default is 64 KiB; with 0, requests with a body are not copied.
//
// A target that has one endpoint has that instead of name and split:
//
//	endpoint:
//	  addr: "10.0.0.1:80"
//	  labels: {zone: a}
//	  weight: 10000                  # for those who put it beside others; 10000 is one
//	  protocol: h2                   # or opaque
//	  serverName: web.default        # of TLS, with
//	  identity: web.default          # who is expected there
//	  authority: web.default         # to send in place of the request's
//	  opaquePort: 4143
//	  pingInterval: 10s              # HTTP/2 keep-alive, with pingTimeout: 3s
//
// A document {} is a file without a profile. A short form takes precedence over a
// ServiceProfile of the same target, and a target with a port over one without.
//
// # Mistakes
//
// Unknown and duplicate fields, two profiles for one target, YAML aliases and tags,
// resources of other kinds and invalid values are mistakes. An empty file is a mistake
// too, because it is probably being written. All mistakes of a file are reported at
// once, each as an [*Error] with its line, column and field. A syntax error is reported
// alone. If two files have a profile for one target, the first file by name is used,
// and the second profile is a mistake.
//
// # Changes
//
// The files are polled twice a second ([WithPollInterval]). A poll compares the file that a
// path leads to, its size and its time. So a rename, a swapped symbolic link and a
// Kubernetes ConfigMap mounted as a volume are detected. A ConfigMap mounted with a
// subPath is never updated. If a watched target is no longer in any file, that
// is an error which lists the targets found, and its last profile stays active.
// To return to the default profile, write the target without any other field. A
// path that does not exist is an error, and all profiles stay active.
//
// Replace a file by a rename. A file that is written in place may be read when half
// written, and that content is active until the next poll. A network file system may
// show a change late.
package file
