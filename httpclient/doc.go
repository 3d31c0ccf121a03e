// Package httpclient makes HTTP clients with one call. Their requests are balanced, retried
// within a budget and queued:
//
//	web := httpclient.New(ctx, "web.default:80")
//	client := &http.Client{Transport: web}       // in a service
//	handler := httplayer.Handler(web)            // in a gateway
//
// A [Client] is a [httplayer.Service] and an [http.RoundTripper] for one target. [Hosts] is
// a RoundTripper that selects a Client by the host of a request.
//
// The layers of a Client, outermost first:
//
//	metrics                    with [WithMetrics]
//	sticky_session             with [WithStickySession]
//	response_header_timeout    15 s, see [WithTimeout]
//	retry                      idempotent requests, within a budget, see [WithRetry]
//	queue                      1000 requests, at most 3 s
//	balance                    the ready endpoint with the lowest cost, see [WithPolicy]
//	endpoint_layer             with [WithEndpointLayer]
//	health_check               with [WithHealthCheck]
//	endpoint                   a connection pool of one address
//
// [layer.Describe] shows them with their state. For other layers, build a stack with
// [httplayer.NewStack].
package httpclient
