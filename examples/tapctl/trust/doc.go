// Package trust makes TLS credentials from files that may be renewed:
//
//	--cacert ──▶ trust anchors ─┐
//	--cert   ──▶ certificate  ──┼─▶ handshake ─▶ connection
//	--key    ──▶ private key  ──┘      │
//	                                   └─▶ Error with advice
//
// The files are read for each connection: certificates that live for an hour are
// replaced where they are, and the next connection shows the new one.
//
// The server proves one name. That is an identity of a mesh, compared whole
// (see layer/tcplayer/identity), or, where none is given, the host as everywhere
// else with TLS. Verification cannot be disabled.
package trust
