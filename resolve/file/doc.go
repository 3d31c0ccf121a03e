// Package file resolves names from a YAML or JSON file, and reads the file again when it changes.
//
//	targets.yaml ◀── stat, twice a second ── Resolver ──▶ each stream: the
//	     │           while there is a stream    ▲         endpoints of its target,
//	     └── read and parse what changed ───────┘         after each change
//
// While the file contains mistakes, its last valid content stays active.
//
// # The file
//
// The example controller uses the same format, with profiles and policies in addition:
//
//	destinations:
//	  web.default.svc.cluster.local:80:        # the target as given to Resolve
//	    labels: {service: web}                 # of all endpoints below
//	    endpoints:
//	      - addr: 10.0.0.1:80                  # required: IP address and port
//	        weight: 20000                      # 10000 is one unit; default: not set
//	        labels: {pod: web-1, zone: a}      # override those above
//	        priority: 1                        # used if too few of priority 0 are healthy
//	        locality: eu-1a                    # zone or region
//	        locality_weight: 3                 # its share in the priority, for all its endpoints
//	      - addr: "[fd00::1]:80"
//	        protocol: h2                       # or opaque, or unknown
//	        identity: web.default.example      # TLS identity: a DNS-like name or a URI
//	        server_name: web.default           # default: the identity, if that is a name
//	        authority: web.internal:80         # sent instead of the request's
//	        opaque_port: 4143                  # accepts opaque transport
//	        ping_interval: 10s                 # HTTP/2 keep-alive
//	        ping_timeout: 3s
//	        ping_while_idle: true              # also without requests; default: false
//	  idle.default.svc.cluster.local:80: {}    # exists without endpoints
//	  old.default.svc.cluster.local:80:        # does not exist, like every name
//	    exists: false                          # that is not in the file
//
// Names are compared exactly, including case and port. An endpoint with a server_name but no
// identity uses TLS, and one with neither uses cleartext. Protocol, identity, server_name,
// authority and opaque_port take effect only if the program's discover.MakeService uses them. The
// file may also be JSON, but without the escape \/ and surrogate pairs, which YAML does not know:
//
//	{"destinations": {"web:80": {"endpoints": [{"addr": "10.0.0.1:80", "weight": 20000}]}}}
//
// Everything else is a mistake: other fields, duplicate names and addresses, YAML aliases and
// tags, and a second document. An empty file is a mistake too, because it is probably being
// written. For no targets, write "destinations: {}". All mistakes are reported together, each as
// an [*Error] with its line, column and field.
//
// # Changes
//
// The file is polled twice a second while there are streams. A poll of an unchanged file is one
// stat, which compares the file's identity, size and modification time. It therefore detects a
// rename, a changed symbolic link, and a changed Kubernetes ConfigMap that is mounted as a
// volume. A ConfigMap mounted with a subPath is never updated. You should replace the file by a
// rename or a changed link. If it is written in place, it may be read before it is complete, and
// that content stays until the next poll. A network file system may show a change late.
package file
