// Package dns resolves names by asking DNS servers, and asks again when what
// they said expires.
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
//	                              an error after the update says so
//	_http._tcp.web.example.org    the SRV records of the name
//	_http._tcp.web.example.org:80 the same; if there are none, as web.example.org:80
//	web.example.org:http          the same as _http._tcp.web.example.org, by the
//	                              option NamedPorts: Kubernetes' named ports
//	10.0.0.1:80, [fd00::1]:80     that endpoint, without a lookup
//
// A dot at the end of a name keeps the search list away from it. Anything that
// cannot be a name or a port is final: resolve.ErrUnresolvable.
//
// # Hosts file
//
// For a target with a host and a port, /etc/hosts comes first, as in Go's resolver:
// a name in it is not asked for, with or without the search list. The addresses of
// the families that are wanted are the answer. The file is read again if it has
// changed, after at least 5 s ([Refresh]). localhost and names that end in
// .localhost are 127.0.0.1 and ::1 without a query if the file does not have them.
// See [HostsFile]. Hosts of SRV records are not looked for in the file.
//
// # Answers
//
// A and AAAA are asked at the same time, and both must be answered: half of an
// answer would take the endpoints of the other family away. A network whose
// servers fail for one of them needs [IPv4Only] or [IPv6Only]. A name with
// neither is Empty; one that is not there is DoesNotExist. The unspecified
// addresses, 0.0.0.0 and ::, are passed over, as if they were not there: filters
// say by them that a name is blocked, and they would connect to this host.
//
// Of SRV records (RFC 2782), those of the lowest priority that have addresses
// are the endpoints. A record's weight is shared evenly by its addresses, and
// put in proportion: with w for an address's share and m for the mean of all
// shares in the set, its Endpoint.Weight is 10 000·w/m, and 1 at least. So equal
// weights are one unit each, whatever they are. Where all weights are 0, which
// says that there is nothing to choose, the Endpoint's are 0 too.
//
// The addresses of a record's host are those that came along in the additional
// section, if any did; else they are asked for. Servers put there what they have at
// hand and have room for: where a host had addresses of both families at the last
// lookup, and those of one come along, the other one is asked for. A lookup of
// which one question fails has failed.
//
// # Servers
//
// A question goes to one server at a time, over UDP with room for 1232 bytes
// (EDNS0), and over TCP if the answer is truncated. A server that does not know
// EDNS0 is asked once more without it. A server that is silent, refuses or fails is
// left for the next one, and the questions after that begin there. Answers to
// another id or question are passed over. The zone's signatures (DNSSEC) are not
// looked at.
//
// A server that asks nobody may say that a name is an alias, and leave out what
// that leads to, for it is none of its own. It is asked for that too; if it does
// not know, the lookup has failed.
//
// # Time
//
// A name is asked for again after the smallest TTL in the chain of records that
// led to its endpoints, or after the negative TTL where there are none (RFC
// 2308, section 5), within the bounds of [Refresh] and later by up to a tenth
// at random. While lookups fail, the back-off takes the place of the TTL; each
// failure is news, and the last answer stays in force. The same answer as before
// is not news, in whatever order it comes, but for the first one after a
// failure: it says that the failure is over.
package dns
