// Package dns resolves names by asking DNS servers, and again when the TTL of the
// answer ends.
//
//	Resolve("web.example.org:80") ─┐                   ┌─ SRV? ─▶ server 1
//	Resolve("web.example.org:80") ─┴▶ one lookup of ───┼─ A? ───▶ (UDP, and TCP
//	                                  each target      └─ AAAA? ▶  if truncated)
//	    Replace, Empty,                  │   ▲                  ▶ server 2, if
//	    DoesNotExist, error ◀────────────┘   └─ after its TTL      1 fails
//
// # Targets
//
//	web.example.org:80            the A and AAAA records of the name, with port 80
//	web.example.org               the SRV records of the name; if there are none,
//	                              an error after the update
//	_http._tcp.web.example.org    the SRV records of the name
//	_http._tcp.web.example.org:80 the same; if there are none, as web.example.org:80
//	web.example.org:http          the same as _http._tcp.web.example.org, with the
//	                              option WithNamedPorts: Kubernetes' named ports
//	10.0.0.1:80, [fd00::1]:80     that endpoint, without a lookup
//
// The search list does not apply to a name with a dot at its end. A target of another
// form has the final error resolve.ErrUnresolvable.
//
// # Hosts file
//
// For a target with a host and a port, /etc/hosts comes first, as in Go's resolver:
// a name in it is not asked for, with or without the search list. Its addresses of the
// wanted families are the answer. The file is read again if it has changed, after at
// least 5 s ([WithRefresh]). localhost and names that end in .localhost are 127.0.0.1 and
// ::1 without a query, unless the file has them. See [WithHostsFile]. Hosts of SRV records
// are not looked up in the file.
//
// # Answers
//
// A and AAAA records are asked for concurrently. If one question fails, the lookup
// fails, because half of an answer would remove the endpoints of the other family. A
// network whose servers fail for one family needs [WithIPv4Only] or [WithIPv6Only]. A name
// without records of either is Empty, and a name that does not exist is DoesNotExist.
// The unspecified addresses, 0.0.0.0 and ::, are ignored. DNS filters return them for
// blocked names, and a connection to them would go to this host.
//
// Of SRV records (RFC 2782), those of the lowest priority that have addresses become
// endpoints. The addresses of a record share its weight evenly. With w for the share
// of an address and m for the mean of all shares, Endpoint.Weight is 10 000·w/m, and
// at least 1. So equal weights are one unit each. If all weights are 0, so are those of
// the endpoints.
//
// The addresses of a record's host come from the additional section, or else from a
// question for them. A server that leaves out the addresses of one family there makes the
// endpoints of that family disappear.
//
// # Servers
//
// A question goes to one server at a time, over UDP with room for 1232 bytes (EDNS0),
// and over TCP if the answer is truncated. If a server does not answer, refuses or fails,
// the next one is asked, and later questions start there. Answers with another id or
// question are ignored. DNSSEC signatures are not verified. Servers have to be recursive
// and to support EDNS0, except that an authoritative server may answer for its own names.
//
// # Time
//
// A name is looked up again after the smallest TTL of the records that led to its
// endpoints, or without endpoints after the negative TTL (RFC 2308, section 5). The
// time is within the bounds of [WithRefresh], plus up to a tenth at random. While lookups
// fail, the backoff replaces the TTL, each failure is yielded as an error, and the last
// answer stays active. An unchanged answer is not yielded, except the first one after
// a failure.
package dns
