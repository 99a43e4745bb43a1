// The CSV files lie compressed in the page and are unpacked when asked for.
async function unpack(name) {
  const letters = atob(data.files[name]);
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).blob();
}
async function download(name) {
  if (typeof DecompressionStream === "undefined") return say("This browser is too old to unpack the files.");
  const link = make("a", { href: URL.createObjectURL(new Blob([await unpack(name)], { type: "text/csv" })), download: name });
  link.click();
  return setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
