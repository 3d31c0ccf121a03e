package httplayer

import (
	"net/http"

	"github.com/gotower/gotower/layer"
)

// Layer, Stack and Option are generic types of package layer, for the messages of net/http.
type (
	Layer  = layer.Layer[*http.Request, *http.Response]
	Stack  = layer.Stack[*http.Request, *http.Response]
	Option = layer.Option[*http.Response]
)

// WithTarget is [layer.WithTarget] for the messages of net/http.
func WithTarget(target string) Option { return layer.WithTarget[*http.Response](target) }

// WithMetrics is [layer.WithMetrics] for the messages of net/http.
func WithMetrics(i layer.Instruments) Option { return layer.WithMetrics[*http.Response](i) }
