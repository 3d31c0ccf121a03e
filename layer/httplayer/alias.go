package httplayer

import (
	"net/http"

	"github.com/gotower/gotower/layer"
)

// Aliases for generic types of package layer with the messages of net/http.
type (
	Layer  = layer.Layer[*http.Request, *http.Response]
	Stack  = layer.Stack[*http.Request, *http.Response]
	Option = layer.Option[*http.Response]
)

// WithTarget calls [layer.WithTarget] with the types of net/http.
func WithTarget(target string) Option { return layer.WithTarget[*http.Response](target) }

// WithMetrics calls [layer.WithMetrics] with the types of net/http.
func WithMetrics(i layer.Instruments) Option { return layer.WithMetrics[*http.Response](i) }
