// Package kit resolves names with the service discovery of go-kit (package
// github.com/go-kit/kit/sd): Consul, etcd, ZooKeeper, Eureka.
//
//	target ──make──▶ sd.Instancer ──"host:port"──▶ Resolver
//	  one for each target; stopped
//	  when its last stream ends
//
// An Instancer serves one service. Therefore New takes a function that creates one for
// a target:
//
//	r := kit.New(func(target string) (sd.Instancer, error) {
//		return consul.NewInstancer(client, logger, target, nil, true), nil
//	})
//
// go-kit does not report targets that do not exist: a target without instances is empty.
// Weights and labels can be set only from the text of an instance, see [WithParse].
package kit
