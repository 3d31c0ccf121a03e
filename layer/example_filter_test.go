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
