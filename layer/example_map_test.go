package layer_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gotower/gotower/layer"
)

// A service of numbers, for callers with text.
func ExampleMap() {
	square := layer.Func[int, int](func(_ context.Context, n int) (int, error) { return n * n, nil })

	svc := layer.Map(square, strconv.Atoi, func(n int) (string, error) { return strconv.Itoa(n), nil })

	fmt.Println(svc.Call(context.Background(), "12"))
	_, err := svc.Call(context.Background(), "twelve")
	fmt.Println(err)
	// Output:
	// 144 <nil>
	// map: converting the request: strconv.Atoi: parsing "twelve": invalid syntax
}

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

func ExampleMapErr() {
	failing := layer.Func[string, string](func(context.Context, string) (string, error) { return "", errors.New("no greeting") })
	svc := layer.MapErr[string, string](func(err error) error { return fmt.Errorf("greeter: %w", err) })(failing)

	_, err := svc.Call(context.Background(), "ann")
	fmt.Println(err)
	// Output: greeter: no greeting
}
