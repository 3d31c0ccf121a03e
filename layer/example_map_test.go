package layer_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/gotower/gotower/layer"
)

func ExampleMapRequest() {
	svc := layer.MapRequest[string, string](strings.TrimSpace)(greet)
	fmt.Println(svc.Call(context.Background(), "  ann "))
	// Output: hello ann <nil>
}

func ExampleMapResponse() {
	svc := layer.MapResponse[string](strings.ToUpper)(greet)
	fmt.Println(svc.Call(context.Background(), "ann"))
	// Output: HELLO ANN <nil>
}
