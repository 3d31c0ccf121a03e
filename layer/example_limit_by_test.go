package layer_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/gotower/gotower/layer"
)

func ExampleLimitBy() {
	tenant := func(req string) string {
		name, _, _ := strings.Cut(req, "/")
		return name
	}
	var svc layer.Service[string, string]
	svc = layer.LimitBy[string, string, string](tenant, 1)(
		layer.Func[string, string](func(ctx context.Context, req string) (string, error) {
			if req == "ann/report" { // asks for more while it is being served
				_, err := svc.Call(ctx, "ann/picture")
				fmt.Println(err)
				fmt.Println(svc.Call(ctx, "bob/picture"))
			}
			return "here is " + req, nil
		}))
	fmt.Println(svc.Call(context.Background(), "ann/report"))
	// Output:
	// limit_by: not ready: 1 of 1 in flight for the key
	// here is bob/picture <nil>
	// here is ann/report <nil>
}
