// Style sheets are imported for the bundler, which puts them beside the page.
declare module "*.css";
