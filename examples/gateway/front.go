package main

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
)

// front returns the options by which a tap sees what the clients of the listener c get: every request
// with its final status, with those that no service has seen, and those that the server has refused.
func (g *gateway) front(c *config.Listener) []httplayer.ServerOption {
	watched := httplayer.NewStack().
		With("explain", tap.Explain(g.tap, httplayer.HTTP{})).
		With("tap", tap.Layer(g.tap, httplayer.HTTP{}, tap.Inbound, tap.WithRouteBelow(),
			tap.WithDestination(netip.AddrPort{}, map[string]string{"listener": string(c.Name)})))
	refused := watched.Service(refusedService{})
	return []httplayer.ServerOption{
		httplayer.WithObserver(watched.Layer()),
		// The server reports a refused request after it has responded. The tap sees it as if it had been sent.
		httplayer.WithOnResponse(func(x *httplayer.Report) {
			if !x.Refused || !g.tap.Watched() {
				return
			}
			// The refused request runs through the layers of the tap, so that it is shown with its status.
			rsp, err := refused.Call(context.WithValue(x.Request.Context(), refusedKey{}, x), x.Request)
			if err == nil {
				_ = rsp.Body.Close()
			}
		}),
	}
}

// refusedKey is the context key for a refused request's [httplayer.Report].
type refusedKey struct{}

// refusedService returns the response that the server has already sent for a request it refused.
type refusedService struct{}

func (refusedService) Ready(context.Context) error { return nil }

// Call returns a response with the status that the server has sent, and explains why it refused the request.
func (refusedService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	x, _ := ctx.Value(refusedKey{}).(*httplayer.Report)
	layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "refused", State: layer.State{{Key: "err", Value: x.Err.Error()}}})
	return &http.Response{StatusCode: x.Status, Header: make(http.Header), Body: http.NoBody, Request: req}, nil
}
