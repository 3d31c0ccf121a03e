// Package kit resolves names with any service discovery of go-kit (package
// github.com/go-kit/kit/sd): Consul, etcd, ZooKeeper, Eureka, DNS SRV. It also
// makes of any resolver an Instancer, for programs that are written for go-kit.
//
//	New                                              Instancer
//	target ──make──▶ sd.Instancer ──"host:port"──▶   Resolver ──▶ sd.Instancer
//	  one a target, however many streams;            one target
//	  stopped when the last one ends
//
// An Instancer is for one service and has no name for it, so New is given the
// function that makes one for a target:
//
//	r := kit.New(func(target string) (sd.Instancer, error) {
//		return consul.NewInstancer(client, logger, target, nil, true), nil
//	})
//
// go-kit knows no target that does not exist: one without instances is empty.
// Nor does it know weights and labels, unless they can be read from the text of
// an instance; see [WithParse].
package kit
