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

// WithTarget sets the name of the target of a stack, which layers show in errors and descriptions.
// It calls [layer.WithTarget].
func WithTarget(target string) Option { return layer.WithTarget[*http.Response](target) }

// WithMetrics sets the instruments in which layers record their measurements. It calls
// [layer.WithMetrics].
func WithMetrics(i layer.Instruments) Option { return layer.WithMetrics[*http.Response](i) }
