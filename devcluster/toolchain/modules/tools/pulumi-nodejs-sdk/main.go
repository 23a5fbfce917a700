// Command pulumi-nodejs-sdk writes a package's TypeScript SDK: `pulumi-nodejs-sdk SCHEMA FOLDER`.
//
// It does what `pulumi package gen-sdk --language nodejs` does with the language host of the same
// release. The newest host that can be had as a module is older, and what it writes has wrong
// imports when it is built with Go 1.26, whose filepath.Rel answers otherwise.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/blang/semver"
	"github.com/pulumi/pulumi/pkg/v3/codegen/nodejs"
	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: pulumi-nodejs-sdk SCHEMA FOLDER")
	}
	if err := generate(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

// alone is the loader of a package whose schema refers to no other one.
type alone struct{}

func (alone) LoadPackage(name string, _ *semver.Version) (*schema.Package, error) {
	return nil, fmt.Errorf("the schema refers to another package, %s", name)
}

func (alone) LoadPackageV2(
	_ context.Context, other *schema.PackageDescriptor,
) (*schema.Package, error) {
	return nil, fmt.Errorf("the schema refers to another package, %s", other.Name)
}

func generate(from, folder string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var spec schema.PackageSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	pkg, problems, err := schema.BindSpec(spec, alone{}, schema.ValidationOptions{})
	if err != nil {
		return err
	}
	if problems.HasErrors() {
		return problems
	}
	files, err := nodejs.GeneratePackage("pulumi", pkg, nil, nil, false, nil)
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
