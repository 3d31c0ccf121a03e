// Command protogen generates Go code for a .proto file, in the same directory. The compiler and
// plug-ins are pinned in tools/go.mod, so everyone generates the same code.
//
//	go -C tools run ./protogen ../tap/tappb/tap.proto gotower/tap/v1/tap.proto
//
// The second argument is the name to register the file under, which must be unique in a process.
// The file may import linkerd2-proxy-api's files.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: protogen FILE NAME")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path, name string) error {
	request, err := compile(ctx, path, name)
	if err != nil {
		return err
	}
	// One plug-in makes the messages, the other the gRPC clients and servers.
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		if err := generate(ctx, plugin, request, filepath.Dir(path)); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

// compile compiles the .proto file at path under the given name, and returns the request for a
// plug-in.
func compile(ctx context.Context, path, name string) (*pluginpb.CodeGeneratorRequest, error) {
	// The .proto files that linkerd's API consists of are in its module, which the main module requires.
	linkerd, err := output(exec.CommandContext(ctx, "go", "-C", "..", "list", "-m", "-f", "{{.Dir}}", "github.com/linkerd/linkerd2-proxy-api"))
	if err != nil {
		return nil, err
	}
	imports := filepath.Join(strings.TrimSpace(string(linkerd)), "proto")
	compiler := protocompile.Compiler{
		SourceInfoMode: protocompile.SourceInfoStandard,
		Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
			Accessor: func(imported string) (io.ReadCloser, error) {
				switch {
				case imported == name:
					return os.Open(path)
				case strings.HasPrefix(imported, "google/protobuf/"):
					return nil, os.ErrNotExist // the compiler comes with newer ones
				}
				return os.Open(filepath.Join(imports, imported))
			},
		}),
	}
	files, err := compiler.Compile(ctx, name)
	if err != nil {
		return nil, err
	}
	return &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{name},
		Parameter:      proto.String("paths=source_relative"),
		ProtoFile:      closure(files[0], map[string]bool{}),
	}, nil
}

// closure returns f and everything that it imports, directly or indirectly, with each file after
// its imports. Paths in visited have been returned before; closure skips them, and adds its own.
func closure(f protoreflect.FileDescriptor, visited map[string]bool) []*descriptorpb.FileDescriptorProto {
	if visited[f.Path()] {
		return nil
	}
	visited[f.Path()] = true
	var all []*descriptorpb.FileDescriptorProto
	for i := range f.Imports().Len() {
		all = append(all, closure(f.Imports().Get(i).FileDescriptor, visited)...)
	}
	return append(all, protodesc.ToFileDescriptorProto(f))
}

// generate runs a plug-in and writes the files that it generates into folder.
func generate(ctx context.Context, plugin string, request *pluginpb.CodeGeneratorRequest, folder string) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	tool := exec.CommandContext(ctx, "go", "tool", plugin)
	tool.Stdin = bytes.NewReader(in)
	out, err := output(tool)
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, f := range response.GetFile() {
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(f.GetName())), []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// output runs c and returns its standard output. Its errors go to the standard error of this program.
func output(c *exec.Cmd) ([]byte, error) {
	c.Stderr = os.Stderr
	return c.Output()
}
