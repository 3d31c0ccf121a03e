// Package trust makes TLS credentials for a gRPC client from files that may be renewed:
//
//	--cacert ──▶ trust anchors ─┐
//	--cert   ──▶ certificate  ──┼─▶ handshake ─▶ connection
//	--key    ──▶ private key  ──┘      │
//	                                   └─▶ Error with advice
//
// The files are read again for each connection. A new connection then uses a renewed
// certificate.
//
// The server must prove one name, which is an identity of a mesh or a host name. An
// identity is compared as a whole (see layer/tcplayer/identity). A host name is verified as
// usual with TLS. Verification cannot be disabled.
package trust
