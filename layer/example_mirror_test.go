package layer_test

import (
	"context"
	"fmt"

	"github.com/gotower/gotower/layer"
)

// For HTTP: layer.Mirror(ctx, next, httplayer.HTTP{}, layer.MirrorPolicy[*http.Request]{Share: 0.1}).
func ExampleMirror() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	copies := make(chan string)
	next := layer.Func[string, string](func(_ context.Context, name string) (string, error) {
		copies <- name
		return "", fmt.Errorf("version 2 does not know %s", name)
	})
	svc := layer.Mirror(ctx, next, texts{}, layer.MirrorPolicy[string]{Target: "greeter-v2"})(greet)

	fmt.Println(svc.Call(ctx, "ann"))
	fmt.Println("version 2 was asked for", <-copies)
	// Output:
	// hello ann <nil>
	// version 2 was asked for ann
}

// texts is an Editor of strings, with the methods that a Mirror calls.
type texts struct{ layer.Editor[string, string] }

func (texts) TeeRequest(req string, _ int64, whole func(copied string, ok bool)) string {
	whole(req, true)
	return req
}
