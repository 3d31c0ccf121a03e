// Package mesh contains the layers and headers by which linkerd's proxies talk to each other and to
// applications. You need it for a proxy in a mesh, beside [httplayer]; examples/proxy uses all of them.
//
//	inbound := httplayer.NewStack().
//		With("orig-proto", mesh.DowngradeOrigProto()).
//		With("client-id", mesh.ClientID(nameOf)).
//		Service(application)
//	server := httplayer.NewServer(inbound, mesh.WithErrorHeaders(true))
//
//	outbound := httplayer.NewStack().
//		With("require-id", mesh.RequireID(identity)).
//		With("proxy-errors", mesh.ProxyErrors(log, true)).
//		With("orig-proto", mesh.UpgradeOrigProto()).
//		Service(peer)
//
// [ClientID] and [RequireID] carry the identities of clients and endpoints. [ProxyErrors] reads what a server
// with [WithErrorHeaders] reports. [UpgradeOrigProto] and [DowngradeOrigProto] send HTTP/1 over HTTP/2.
package mesh
