package controller

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

var update = flag.Bool("update", false, "write the responses of the controller to testdata/conversations")

// conversation is a recorded call: the request, and the responses in order. The first response
// is that of before.yaml, and the others are those of after.yaml.
type conversation struct {
	Method    string            `json:"method"`
	Request   json.RawMessage   `json:"request"`
	Responses []json.RawMessage `json:"responses"`
}

// The controller sends the recorded responses of each method.
func TestConversations(t *testing.T) {
	const dir = "testdata/conversations/"
	load := func(c *Controller, name string) {
		data, err := os.ReadFile(dir + name)
		require.NoError(t, err)
		cfg, err := Parse(name, data)
		require.NoError(t, err)
		set(t, c, cfg)
	}
	files, err := filepath.Glob(dir + "*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			var recorded conversation
			require.NoError(t, json.Unmarshal(data, &recorded))
			name := protoreflect.FullName(strings.ReplaceAll(recorded.Method[1:], "/", "."))
			found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
			require.NoError(t, err)
			method := found.(protoreflect.MethodDescriptor)
			message := func(d protoreflect.MessageDescriptor) proto.Message {
				mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
				require.NoError(t, err)
				return mt.New().Interface()
			}

			c := New(nil)
			load(c, "before.yaml")
			stream, err := connected(t, c).NewStream(within20s(t), &grpc.StreamDesc{ServerStreams: true}, recorded.Method)
			require.NoError(t, err)
			req := message(method.Input())
			require.NoError(t, protojson.Unmarshal(recorded.Request, req))
			require.NoError(t, stream.SendMsg(req))
			require.NoError(t, stream.CloseSend())
			for i, text := range recorded.Responses {
				if i == 1 {
					load(c, "after.yaml")
				}
				want, got := message(method.Output()), message(method.Output())
				require.NoError(t, stream.RecvMsg(got))
				if *update {
					text, err = protojson.Marshal(got)
					require.NoError(t, err)
					recorded.Responses[i] = text
				}
				require.NoError(t, protojson.Unmarshal(text, want))
				require.True(t, proto.Equal(want, got), "response %d\n%s\n%s", i, text, protojson.Format(got))
			}
			if *update {
				var b bytes.Buffer
				data, err = json.Marshal(recorded)
				require.NoError(t, err)
				require.NoError(t, json.Indent(&b, data, "", "  "))
				require.NoError(t, os.WriteFile(file, append(b.Bytes(), '\n'), 0o600))
			}
		})
	}
}
