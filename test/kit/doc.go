// Package kit tests the packages resolve/kit and kitlayer with real registries: etcd and ZooKeeper.
// It is a separate module, because their clients have many dependencies. Without the programs that
// .ci/registries.sh installs, its tests are skipped:
//
//	bash .ci/registries.sh
//	GOTOWER_TESTS=full go -C test/kit test ./...
//
// Consul is not tested, because its server is available neither as a module nor as a system
// package.
package kit
