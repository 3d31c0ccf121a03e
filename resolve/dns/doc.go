// Package dns resolves names by asking DNS servers. It repeats a lookup when the TTL of
// the answer has expired.
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
//	10.0.0.1:80, [fd00::1]:80     that endpoint, without a lookup
//
// The search list does not apply to a name that ends in a dot. A target of another form
// returns the final error resolve.ErrUnresolvable.
//
// # Hosts file
//
// For a target with a host and a port, /etc/hosts is used first, as in Go's resolver.
// If the file has the host, its addresses are the answer, and no server is asked. The
// search list does not apply to the file. The file is read again if it has changed,
// after at least 5 s ([WithRefresh]). localhost and names that end in .localhost are
// 127.0.0.1 and ::1, unless the file has other addresses. See [WithHostsFile]. The
// hosts of SRV records are not looked up in the file.
//
// # Answers
//
// A and AAAA records are asked for concurrently. If one question fails, the lookup
// fails, because half of an answer would remove the endpoints of the other family. If
// the servers of a network fail for one family, use [WithIPv4Only] or [WithIPv6Only].
// Unlike in Go's resolver, a failed name of the search list also fails the lookup,
// because a later name may belong to another service.
//
// A name without A and AAAA records is Empty, and a name that does not exist is
// DoesNotExist. The unspecified addresses, 0.0.0.0 and ::, are ignored. DNS filters return
// them for blocked names, and a connection to them would go to this host.
//
// Of SRV records (RFC 2782), those with the lowest priority that have addresses become
// endpoints. The addresses of a record share its weight evenly. Endpoint.Weight is 10 000·w/m,
// and at least 1, where w is the share of the address and m the mean of all shares. Thus equal
// weights are one unit each. If all weights are 0, those of the endpoints are 0 too.
//
// The addresses of a record's host are in the additional section, or else are asked for. If a
// server omits the addresses of one family there, the endpoints of that family are missing.
//
// # Servers
//
// A question is sent to one server at a time: over UDP with a limit of 1232 bytes (EDNS0), and
// over TCP if the answer is truncated. If a server does not answer, refuses or fails, the next
// one is asked, and later questions start with that one. Answers with another id or question
// are ignored. DNSSEC signatures are not verified. Servers must be recursive and support EDNS0.
// An authoritative server may answer for its own names.
//
// # Time
//
// A name is looked up again after the smallest TTL of the records that led to its
// endpoints. A name without endpoints is looked up again after the negative TTL (RFC
// 2308, section 5). The time is limited by [WithRefresh], and up to a tenth is added at
// random. While lookups fail, the backoff replaces the TTL. Each failure is yielded as
// an error, and the last answer stays active. An unchanged answer is not yielded,
// except the first one after a failure.
package dns
