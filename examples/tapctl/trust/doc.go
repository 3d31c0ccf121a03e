// Package trust is TLS with a server that has to prove who it is, and may want
// the same of us. All of it is in files, which those renew who issued them:
//
//	--cacert ──▶ trust anchors ─┐
//	--cert   ──▶ who we are   ──┼─▶ handshake ─▶ connection
//	--key    ──▶              ──┘      │
//	                                   └─▶ Error: what is wrong, and what to do
//
// The files are read for each connection: certificates that live for an hour are
// replaced where they are, and the next connection shows the new one.
//
// The server proves one name. That is an identity of a mesh, compared whole
// (see layer/tcplayer/identity), or, where none is given, the host as everywhere
// else with TLS. There is no way to go on without that: what is watched may be
// anybody's then.
package trust
