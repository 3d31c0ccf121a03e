// Package httpclient makes HTTP clients with one call. Their requests are balanced, retried within a budget and queued:
//
//	web := httpclient.New(ctx, "web-headless.default:8080")
//	client := &http.Client{Transport: web}       // in a service
//	handler := httplayer.Handler(web)            // in a gateway
//
//	client.Transport = httpclient.NewTransport(ctx) // of any host, in place of http.DefaultTransport
//
// The name must resolve to the addresses of all endpoints. In Kubernetes, that is a headless Service, with the port on
// which its Pods listen. Any other Service's name resolves to one address, so there is nothing to balance; with
// [WithResolver], you can use package resolve/k8s to resolve it to its Pods.
//
// With [WithProfiles], a client follows the routes, splits, retries and timeouts of a control plane or a file, without a
// proxy. These lines make a client for a service whose routes and endpoints linkerd knows:
//
//	conn, err := grpc.NewClient("linkerd-dst.linkerd:8086", grpc.WithTransportCredentials(insecure.NewCredentials()))
//	web := httpclient.New(ctx, "web.default.svc.cluster.local:80",
//		httpclient.WithProfiles(profilesource.New(conn)), // package profiles/linkerd
//		httpclient.WithResolver(endpointsource.New(conn))) // package resolve/linkerd
//	client := &http.Client{Transport: web}
//
// A [Client] is a [httplayer.Service] and an [http.RoundTripper] for one target. A [Transport] is a RoundTripper that
// keeps a Client for each host. [WithHosts] gives hosts their own options, or refuses unknown ones.
//
// The layers of a Client, outermost first:
//
//	metrics                    with [WithMetrics]
//	events                     with [WithEvents] or [WithLogger]
//	own layers                 with [WithLayer]
//	sticky_session             with [WithStickySession]
//	response_header_timeout    15 s, see [WithTimeout]
//	retry                      idempotent requests, within a budget, see [WithRetry]
//	hedge                      with [WithHedge]
//	queue                      1000 requests, at most 3 s, see [WithQueue] and [WithWaitForReady]
//	limit                      with [WithLimit]
//	balance                    the ready endpoint with the lowest cost, see [WithPolicy]
//	breaker, limit             for each endpoint, with [WithBreaker] and [WithEndpointLimit]
//	endpoint_layer             with [WithEndpointLayer]
//	health_check               with [WithHealthCheck]
//	endpoint                   a connection pool for one address, see [WithTLS] and [WithPreconnect]
//
// With [WithProfiles], each route gets its own timeouts and retries, and each of its backends the layers from the queue
// on.
//
// [layer.Describe] shows them with their state. For other layers, build a stack with [httplayer.NewStack].
//
// # Programs
//
// These examples are programs of at most 30 lines:
//
//	New                          three servers, of which one fails and one does not listen
//	package (ChangingDNS)        a name whose addresses change
//	package (Upload)             an upload with a retry
//	package (Download)           a download that continues after a broken connection
//	package (OwnCA)              certificates of an authority of your own
//	package (Proxy)              HTTP_PROXY and NO_PROXY
//	package (Oauth2, Promhttp)   other round trippers around a client; package oteltower has one for otelhttp
//	package k8s, New             the Pods of a Service of Kubernetes
//	package (Shutdown)           a graceful shutdown
//	package (Httptest)           a test with servers of package httptest
//	WithPolicy                   a rule of your own that picks the endpoint
//	WithLayer                    a layer of your own
//	package (GenericLayer)       a layer for any protocol, which sets a header of the response
//
// # As http.Transport
//
// As RoundTrippers, Client and Transport do what [http.DefaultTransport] does: they add a User-Agent, ask for gzip and
// decompress it, use HTTP/2 over TLS if the server selects it, send the body of a request with "Expect: 100-continue"
// after a response or one second, and call the hooks of package httptrace. Redirects and cookies are handled by
// http.Client. A Transport uses HTTP_PROXY, HTTPS_PROXY and NO_PROXY. nethttp_test.go runs the behaviors that net/http's
// own tests require with both, and lists the tests that it skips. The differences:
//
//   - After a host could not be reached, its requests fail without an attempt until it is reached again in the
//     background: the next attempt follows after 100 ms, and further ones after at most 1.1 s.
//   - User-Agent is Go-http-client/1.1 also over HTTP/2.
//   - An idempotent request is sent up to three times, also after a status such as 503; see [WithRetry].
//   - A host is resolved in the background. The hooks DNSStart and DNSDone are therefore not called,
//     nor is WroteHeaderField, and PutIdleConn is called for HTTP/1.1 only.
//   - Connecting takes at most 10 s for TCP and TLS together, instead of 30 s and 10 s. Another address
//     is tried after a failure, or after 300 ms if it is of the other IP family.
//   - The fields DisableKeepAlives, MaxConnsPerHost, MaxIdleConnsPerHost, IdleConnTimeout, DialContext
//     and TLSClientConfig have options: see [WithEndpointOptions] and [WithTLS]. OnProxyConnectResponse,
//     ProxyConnectHeader and RegisterProtocol have none.
//   - A function for DialContext gets the address of an endpoint. A host that DNS does not have, such as one that stands for
//     a Unix socket, therefore needs [WithTarget] or [WithAddrs].
//   - Response headers may be up to 1 MiB long and have up to 4000 fields, instead of 10 MiB. A response with a folded line
//     or a space in a field name is an error.
//   - The fields for one connection, such as Keep-Alive, TE other than trailers, and those that Connection names, are neither
//     sent nor returned. A Connection field counts if it has close or asks for an upgrade.
//   - The deprecated field Cancel of a request has no effect; use its context.
//   - The body of the response to CONNECT is an io.ReadWriteCloser for the tunnel, instead of the request body.
//   - A Client waits 15 s for the response headers; a Transport has no limit. See [WithTimeout].
//   - A request through a Client reaches the target, whatever its URL says, and without a proxy unless
//     [WithProxy] is set.
//
// As services ([Client.Call]), they are made for proxies and change nothing in a request or a response.
package httpclient
