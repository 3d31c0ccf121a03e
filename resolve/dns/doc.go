// Package dns resolves names by asking DNS servers. It repeats a lookup when the answer's TTL has expired.
//
//	Resolve("web.example.org:80") ─┐                   ┌─ SRV? ─▶ server 1
//	Resolve("web.example.org:80") ─┴▶ one lookup of ───┼─ A? ───▶ (UDP, and TCP
//	                                  each target      └─ AAAA? ▶  if truncated)
//	    Replace, Empty,                  │   ▲                  ▶ server 2, if
//	    DoesNotExist, error ◀────────────┘   └─ after its TTL      1 fails
//
// It gives addresses wherever Go's resolver does, within its time, so you can use it in place of
// [net.Resolver] even on networks whose servers, search lists or files are not perfect. See Differences for
// the exceptions.
//
// # Targets
//
//	web.example.org:80            the name's A and AAAA records, with port 80
//	web.example.org               the name's SRV records; if there are none,
//	                              an error after the update
//	_http._tcp.web.example.org    the name's SRV records
//	_http._tcp.web.example.org:80 the same; if there are none, as web.example.org:80
//	10.0.0.1:80, [fd00::1]:80     that endpoint, without a lookup
//
// In Kubernetes, a headless Service's name resolves to its Pods' addresses, and the port is the one on which
// they listen. Any other Service's name resolves to one address, so there is nothing to balance; use package
// k8s to resolve such a Service to its Pods.
//
// The search list does not apply to a name that ends in a dot. Any other kind of target returns the final
// error resolve.ErrUnresolvable.
//
// # Hosts file
//
// For a target with a host and a port, /etc/hosts is used first, as in Go's resolver. If the file lists the
// host, its addresses are the answer, and no server is asked. The search list does not apply to the file. The
// file is read again if it has changed, after at least 5 s ([WithRefresh]). localhost and names that end in
// .localhost are 127.0.0.1 and ::1, unless the file says otherwise. See [WithHostsFile]. SRV hosts are not
// looked up in the file.
//
// # Answers
//
// A and AAAA records are asked for concurrently. If only one family is answered within 50 ms, its addresses
// are yielded at once, and those of the other family follow.
//
// Some servers always fail for AAAA, for SRV, or for one search domain. Therefore a question that fails does
// not fail the lookup:
//
//   - If the question was answered by the previous lookup, that answer is kept, and the failure is
//     yielded as an error. So the addresses in a family or for an SRV record's host survive an outage.
//   - Otherwise it counts as an answer without records: the lookup uses the other family, the
//     next name in the search list, the other SRV hosts, or the host without
//     its SRV records. Only if no endpoint is found, the failure is an error.
//
// A name without A and AAAA records is Empty, and a name that does not exist is DoesNotExist. If the target
// had endpoints, the next lookup must confirm such an answer before it is yielded: 5 s later, the shortest
// time of [WithRefresh]. Otherwise one wrong answer, from a server that has just started, or from a public
// server that was asked because a message was lost, would remove a set that still works. grpc-go and Envoy
// remove it at once; HAProxy keeps it for 30 s. [resolve.ServeStale] keeps it longer.
//
// Among SRV records (RFC 2782), those with the lowest priority for which there are addresses become endpoints
// with Priority 0. Those with the next one get Priority 1, and so on: nginx uses them as a backup too. A
// record's addresses share its weight evenly. Endpoint.Weight is 10 000·w/m, and at least 1, where w is the
// address's share and m the mean of all shares in that priority. Thus equal weights are one unit each. If all
// weights are 0, those of the endpoints are 0 too.
//
// The addresses for a record's host are in the additional section, or else are asked for. If a server omits
// one family's addresses there, that family's endpoints are missing.
//
// # Servers
//
// The servers and their options come from /etc/resolv.conf (resolv.conf(5)), read at each lookup: the first
// three nameserver lines, domain, search, and the options ndots, timeout, attempts, rotate, single-request and
// use-vc. What cannot be parsed is ignored, as in Go's resolver. Without a nameserver or a readable file, the
// servers are 127.0.0.1 and ::1. Without a search list, it is the domain in the host's name.
//
// A question is sent over UDP with a limit of 1232 bytes (EDNS0), and over TCP if the answer is truncated. A
// server that rejects EDNS0 is asked again without it. If a server refuses or fails, the next one is asked at
// once. If it does not answer within 1 s, the next one is asked too, and the first one's answer is awaited for
// the timeout, 5 s. Each question starts with the first server, because a later one, such as a public server,
// may not know all names. Answers with another id or question are ignored. DNSSEC signatures are not verified.
// Servers must be recursive. An authoritative server may answer for its own names.
//
// # Time
//
// A name is looked up again after the smallest TTL among the answered records. A name without endpoints is
// looked up again after the negative TTL (RFC 2308, section 5). The time is clamped by [WithRefresh], and up
// to a tenth is added at random. After a lookup with a failed question, it is at most the backoff
// ([WithBackoff]), which doubles with each such lookup. An unchanged answer is not yielded, except the first
// one after an error.
//
// # Differences
//
// Compared with [net.Resolver], note these differences:
//
//   - 0.0.0.0 and :: in an answer or in the hosts file are ignored. DNS filters return them for
//     blocked names, and a connection to them would go to this host.
//   - localhost is never asked for at a server (RFC 6761).
//   - An internationalized name is converted to its DNS form, as by net/http.
//   - Names such as 1.2.3 and -a.example.org are asked for.
//   - A server that rejects EDNS0 is asked again without it.
//   - An answer over UDP is read beyond 1232 bytes.
//   - nsswitch.conf is not read: the order is the hosts file, then DNS.
//   - On Windows, the system's servers are not known: use [WithServers].
package dns
