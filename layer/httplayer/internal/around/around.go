// Package around makes layers of functions, for httplayer and its subpackages.
package around

import (
	"context"
	"net/http"

	"github.com/gotower/gotower/layer"
)

// Service is what httplayer.Service is.
type Service = layer.Service[*http.Request, *http.Response]

// CallFunc is the Call of a layer. It usually passes the request on to next, the service below.
type CallFunc func(ctx context.Context, req *http.Request, next Service) (*http.Response, error)

// Layer returns a layer that calls f for each request and forwards Ready. Describe of the layer
// shows the arguments name and state.
func Layer(name string, state layer.State, f CallFunc) layer.Layer[*http.Request, *http.Response] {
	return func(next Service) Service { return &around{next, name, state, f} }
}

// around is the Service of a layer that only changes Call: that runs the function in the field call.
// Ready is that of the service below.
type around struct {
	Service
	name  string
	state layer.State
	call  CallFunc
}

func (a *around) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	return a.call(ctx, req, a.Service)
}

func (a *around) Next() Service { return a.Service }

func (a *around) Describe() layer.Node { return layer.Node{Name: a.name, State: a.state} }
