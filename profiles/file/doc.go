// Package file has profiles from YAML or JSON files, and follows the files as
// they change.
//
//	web.yaml  ◀┐
//	api.yaml  ◀┼─ stat, twice a second ── Source ──▶ each Watch: the profile of
//	shop.yaml ◀┘    while somebody watches   ▲       its target, if that changed
//	     │                                   │
//	     └── read and parse what changed ────┘
//
// A [Source] follows one file, or those of a directory. A file may have several
// documents, each of them in one of two forms. When a file goes bad, what it
// last said when it was good stays in force.
//
// # ServiceProfiles of linkerd
//
// A document with apiVersion linkerd.io/v1alpha2 and kind ServiceProfile is read
// as linkerd's controller and proxy do it: what "linkerd profile" and flagger
// write, and "kubectl get serviceprofiles -o yaml" prints, works as it is.
// metadata.name is the target, on all of its ports; of two with one name the
// namespace decides (see [Namespace]). Without a retryBudget it is 20 %, 10 a
// second, 10 s. What linkerd refuses is a mistake. What linkerd takes and then
// leaves out without a word (an expression that does not parse, a status range
// with one end, an address in a split) is left out, and told: in
// [Set.Warnings], and to a [Logger]. So is an expression that is too large, see
// [profiles.Path].
//
// # The short form
//
// A document without apiVersion and kind is in a form that says all that a
// [profiles.Profile] can. Only target is required, and match in a route:
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
// Where successes and failures do not say enough, classes do, in their order:
//
//	classes:
//	- match: {any: [{status: 404}, {not: {status: [200-299, 304]}}]}
//	  failure: true
//	- match: {grpc: [UNAVAILABLE, 13-15], trailer: {x-partial: {present: true}}}
//	  failure: true
//
// What else a route may have changes requests and responses, answers in place
// of the targets, or sends copies:
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
// A fault must say which share and how long. The body of a mirror is the largest
// that is copied, 64 KiB if it is left out; with 0 requests that have one are
// not.
//
// A target that is served at one place has that instead of name and split:
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
// A document {} is a file that has no profile. A short form wins over a
// ServiceProfile of the same target, and one with a port over one without.
//
// # Mistakes
//
// Unknown fields, what is given twice, two profiles for one target, aliases and
// tags of YAML, resources of other kinds and whatever could not work are
// mistakes. So is a file without content, since it is more likely about to be
// written than meant. Each mistake is an [*Error] with its line, column and
// field, and all of a file's come at once; those in the YAML itself are told
// alone. Of two files that have a profile for one target, the first by name has
// it, and that is an error too.
//
// # Changes
//
// The files are looked at twice a second ([PollEvery]): what a path leads to,
// its size and its time. A rename onto it and a swapped symbolic link are seen,
// so a Kubernetes ConfigMap that is mounted as a volume is (one mounted with a
// subPath is never changed). If a watched target is no longer in any file, that
// is an error which lists the targets found, and its last profile stays active.
// To return to the default profile, write the target without any other field. A
// path that does not exist is an error, and all profiles stay active.
//
// Replace a file by a rename: one that is written in place may be read half
// written, and that half be in force until the next look. A network file system
// may show a change later than it was made.
package file
