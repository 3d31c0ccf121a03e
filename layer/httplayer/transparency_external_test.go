package httplayer_test

import (
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/mesh"
)

// The internal tests cannot import package mesh.
var _ = func() bool {
	layers := &httplayer.Mesh
	layers.Upgrade, layers.Downgrade, layers.ProxyErrors = mesh.UpgradeOrigProto(), mesh.DowngradeOrigProto(), mesh.ProxyErrors(nil, true)
	return true
}()
