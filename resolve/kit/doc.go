// Package kit resolves names with the service discovery of go-kit (package
// github.com/go-kit/kit/sd): Consul, etcd, ZooKeeper, Eureka. It also makes any resolver
// an Instancer, for programs that use go-kit.
//
//	New                                              Instancer
//	target ──make──▶ sd.Instancer ──"host:port"──▶   Resolver ──▶ sd.Instancer
//	  one for each target; stopped                   one target
//	  when its last stream ends
//
// An Instancer is for one service, so New gets a function that makes one for a target:
//
//	r := kit.New(func(target string) (sd.Instancer, error) {
//		return consul.NewInstancer(client, logger, target, nil, true), nil
//	})
//
// go-kit does not report targets that do not exist: a target without instances is empty.
// Weights and labels can only come from the text of an instance, see [WithParse].
package kit
