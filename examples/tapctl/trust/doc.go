// Package trust makes TLS credentials from files that may be renewed:
//
//	--cacert ──▶ trust anchors ─┐
//	--cert   ──▶ certificate  ──┼─▶ handshake ─▶ connection
//	--key    ──▶ private key  ──┘      │
//	                                   └─▶ Error with advice
//
// The files are read for each connection, so that the next connection uses a renewed
// certificate.
//
// The server must prove one name. That is an identity of a mesh, which is compared as a
// whole (see layer/tcplayer/identity), or else the host name, as usual with TLS.
// Verification cannot be disabled.
package trust
