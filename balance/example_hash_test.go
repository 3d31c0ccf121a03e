package balance_test

import (
	"context"
	"fmt"
	"hash/fnv"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
)

// Requests of one user go to one endpoint, because it has them in its cache.
func ExampleConsistentHash() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	svc := balance.Resolve(ctx, fixed("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"), "web", hello,
		balance.WithPolicy[string](balance.Policy{Picker: balance.ConsistentHash(1.25)}))
	ready(svc, 3)
	for _, user := range []string{"alice", "bob", "carol", "dave", "alice", "bob"} {
		key := fnv.New64a()
		_, _ = key.Write([]byte(user))
		fmt.Println(svc.Call(layer.WithAffinity(ctx, key.Sum64()), user))
	}
	// Output:
	// hello alice from 10.0.0.3:80 <nil>
	// hello bob from 10.0.0.2:80 <nil>
	// hello carol from 10.0.0.1:80 <nil>
	// hello dave from 10.0.0.3:80 <nil>
	// hello alice from 10.0.0.3:80 <nil>
	// hello bob from 10.0.0.2:80 <nil>
}
