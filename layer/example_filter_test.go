package layer_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/gotower/gotower/layer"
)

func ExampleFilter() {
	svc := layer.Filter[string, string](func(name string) error {
		if name == "" {
			return errors.New("whom?")
		}
		return nil
	}, layer.WithTarget[string]("greeter"))(greet)

	fmt.Println(svc.Call(context.Background(), "ann"))
	_, err := svc.Call(context.Background(), "")
	fmt.Println(err)
	// Output:
	// hello ann <nil>
	// filter greeter: whom?
}

func ExampleIf() {
	loud := func(name string) bool { return name == "bob" }
	svc := layer.If(loud, shout)(greet)

	fmt.Println(svc.Call(context.Background(), "ann"))
	fmt.Println(svc.Call(context.Background(), "bob"))
	// Output:
	// hello ann <nil>
	// HELLO BOB <nil>
}
