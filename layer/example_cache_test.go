package layer_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gotower/gotower/layer"
)

// One service for each key, made when it is first used.
func ExampleCache() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	greeters := layer.NewCache(ctx, func(_ context.Context, language string) layer.Service[string, string] {
		fmt.Println("made", language)
		return layer.Func[string, string](func(_ context.Context, name string) (string, error) {
			return language + ": " + name, nil
		})
	}, layer.CachePolicy{IdleTimeout: 10 * time.Second, Capacity: 100})

	for _, language := range []string{"en", "de", "en"} {
		fmt.Println(greeters.Service(language).Call(ctx, "ann"))
	}
	// Output:
	// made en
	// en: ann <nil>
	// made de
	// de: ann <nil>
	// en: ann <nil>
}
