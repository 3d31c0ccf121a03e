// Package kit resolves names with go-kit's service discovery (package github.com/go-kit/kit/sd): Consul, etcd, ZooKeeper,
// Eureka.
//
//	target ──make──▶ sd.Instancer ──"host:port"──▶ Resolver
//	  one for each target; stopped
//	  when its last stream ends
//
// As an Instancer serves one service, you pass New a function that creates one for a target:
//
//	r := kit.New(func(target string) (sd.Instancer, error) {
//		return consul.NewInstancer(client, logger, target, nil, true), nil
//	})
//
// go-kit does not report targets that do not exist: a target without instances is empty. Weights and labels can be set only
// from an instance's text, see [WithParse].
//
// An instance may be an address, a name with a port, or a URL. Names are looked up and followed, so that an httpclient or
// another of our clients connects to their addresses. go-kit's factories connect with the text itself: use [Opaque] with
// kitlayer.Factory, which gets the text from [Instance]:
//
//	r := kit.New(newInstancer, kit.WithParse(kit.Opaque))
//	service := kitlayer.Factory[SumRequest, SumResponse](factory)
//	endpoint := func(ctx context.Context, t discover.Target) layer.Service[SumRequest, SumResponse] {
//		return service(ctx, kit.Instance(t.Endpoint))
//	}
//	svc := balance.Resolve(ctx, r, balance.Config{Target: "sum"}, endpoint)
package kit
