// Package file resolves names from a YAML or JSON file, and follows the file as
// it changes.
//
//	targets.yaml ◀── stat, twice a second ── Resolver ──▶ each stream: what is
//	     │           while there is a stream    ▲         said of its target, if
//	     └── read and parse what changed ───────┘         that really changed
//
// When the file goes bad, its last good content stays in force.
//
// # The file
//
// Its shape is that of the example controller's file, without the profiles:
//
//	destinations:
//	  web.default.svc.cluster.local:80:        # as callers of Resolve write it
//	    labels: {service: web}                 # on every endpoint below
//	    endpoints:
//	      - addr: 10.0.0.1:80                  # required: IP address and port
//	        weight: 20000                      # 10000 is one unit; left out: not said
//	        labels: {pod: web-1, zone: a}      # these win over those above
//	      - addr: "[fd00::1]:80"
//	        protocol: h2                       # or opaque, or unknown
//	        identity: web.default.example      # TLS identity; a DNS-like name or a URI
//	        server_name: web.default           # left out: the identity, if that is a name
//	        authority: web.internal:80         # sent instead of the request's
//	        opaque_port: 4143                  # takes opaque transport
//	        ping_interval: 10s                 # HTTP/2 keep-alive
//	        ping_timeout: 3s
//	  idle.default.svc.cluster.local:80: {}    # exists, with no endpoint
//	  old.default.svc.cluster.local:80:        # does not exist, like every name
//	    exists: false                          # that is not in the file
//
// Names are compared as they are written: case counts, and no port is added.
// A server_name without an identity is plain TLS; an endpoint with neither is
// cleartext. Protocol, identity, server_name, authority and opaque_port do nothing
// by themselves: whoever makes the service of an endpoint has to act on them, as
// package discover says of its Make. The same as JSON is read too:
//
//	{"destinations": {"web:80": {"endpoints": [{"addr": "10.0.0.1:80", "weight": 20000}]}}}
//
// Whatever is not in this list is a mistake: other fields, a name or an address
// given twice, aliases and tags of YAML, a second document. A file without
// content is one too, since it is more likely about to be written than meant;
// write "destinations: {}" for a file of no targets. Each mistake is an
// [*Error] with its line, and all of a file's come at once.
//
// # Changes
//
// The file is looked at twice a second ([PollEvery]): what the path leads to,
// its size and its time. A rename onto it and a swapped symbolic link are seen,
// so a Kubernetes ConfigMap that is mounted as a volume is (one mounted with a
// subPath is never changed). Replace the file in one of these ways: one that is
// written in place may be read half written, and that half be in force until
// the next look. A network file system may show a change later than it was made.
package file
