package layer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

func TestOptionNil(t *testing.T) {
	svc := layer.NewStack[string, string](nil).WithTarget("web").Limit(0).Service(layer.Func[string, string](repeat))
	_, err := svc.Call(t.Context(), "a")
	require.EqualError(t, err, "limit web: not ready: 0 of 0 in flight")
}

func TestConstructorsInvalidArguments(t *testing.T) {
	for _, e := range catalog() {
		for want, construct := range e.invalid {
			require.PanicsWithValue(t, "layer: "+want, construct, e.name)
		}
	}
}

func TestStackInvalidArguments(t *testing.T) {
	for want, construct := range map[string]func(){
		"Stack: nil service": func() { layer.NewStack[string, string]().Service(nil) },
		`Stack: layer "mine" returned nil`: func() {
			none := func(layer.Service[string, string]) layer.Service[string, string] { return nil }
			layer.NewStack[string, string]().With("mine", none).Service(layer.Func[string, string](repeat))
		},
	} {
		require.PanicsWithValue(t, "layer: "+want, construct)
	}
}

func TestOptionInvalidArguments(t *testing.T) {
	for want, construct := range map[string]func(){
		"WithClassifier: nil Classifier": func() { layer.WithClassifier[string](nil) },
		"WithCompletion: nil Completion": func() { layer.WithCompletion[string](nil) },
		"WithProtocol: nil Protocol":     func() { layer.WithProtocol[string, string](nil) },
		"WithProtocol: layer.BaseProtocol[string,string] is not for requests of type int": func() {
			layer.Retry(layer.RetryPolicy[int, string]{}, layer.WithProtocol(layer.BaseProtocol[string, string]{}))
		},
	} {
		require.PanicsWithValue(t, "layer: "+want, construct)
	}
}
